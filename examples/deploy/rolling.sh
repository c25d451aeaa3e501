#!/bin/sh
# One machine after the other: carry out a command, restart the peer, wait until it answers: rolling.sh HOSTS COMMAND
# HOSTS has a machine a line, in the order of peer1, peer2, ... Stops where a peer does not come back.
set -eu
hosts=$1 command=$2 number=0
while read -r host; do
    number=$((number + 1)) peer=peer$number tries=0
    ssh -n "root@$host" "$command && systemctl restart fedpeer@$peer"
    until ssh -n "root@$host" "runuser -u fedpeer -- /opt/fedpeer/bin/fedpeer status --json \
        --config /var/lib/fedpeer/$peer/$peer.yaml > /dev/null 2>&1"; do
        tries=$((tries + 1))
        [ "$tries" -lt 60 ] || { echo "$peer is not back; see journalctl -u fedpeer@$peer on $host" >&2; exit 1; }
        sleep 1
    done
    echo "$peer is back"
done < "$hosts"
