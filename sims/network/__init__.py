"""A simulated world for whole peers: links, disks, clocks and faults, in virtual time, from one seed."""
