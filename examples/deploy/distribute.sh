#!/bin/sh
# Bring each peer's folder to its machine, check it there, and start it: distribute.sh FOLDER HOSTS
# HOSTS has a machine a line, in the order of peer1, peer2, ... Saying it again changes nothing that is right.
set -eu
folder=$1 hosts=$2 here=$(dirname "$0") number=0
while read -r host; do
    number=$((number + 1)) peer=peer$number
    ssh -n "root@$host" "install -d -o fedpeer -g fedpeer -m 700 /var/lib/fedpeer"
    case $host in *:*) at="[$host]" ;; *) at=$host ;; esac # scp takes IPv6 addresses in brackets, ssh without
    scp -rpq "$folder/$peer" "root@$at:/var/lib/fedpeer/"
    scp -q "$here/fedpeer@.service" "root@$at:/etc/systemd/system/"
    ssh -n "root@$host" "chown -R fedpeer:fedpeer /var/lib/fedpeer/$peer \
        && runuser -u fedpeer -- /opt/fedpeer/bin/fedpeer config check /var/lib/fedpeer/$peer/$peer.yaml \
        && systemctl daemon-reload && systemctl enable --now fedpeer@$peer"
done < "$hosts"
