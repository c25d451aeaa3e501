"""The network engine: whole peers over simulated links, disks and clocks, with faults, in virtual time."""
