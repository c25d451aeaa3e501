#!/bin/sh
# Print a Prometheus job for each peer, since each has a token and a certificate of its own: prometheus.sh FOLDER HOSTS
# The two files of each are read from FOLDER, so copy these to where Prometheus may read them.
set -eu
folder=$1 hosts=$2 number=0
echo "scrape_configs:"
while read -r host; do
    number=$((number + 1)) peer=peer$number
    case $host in *:*) at="[$host]" ;; *) at=$host ;; esac
    cat <<EOF
  - job_name: $peer
    scheme: https
    scrape_interval: 30s
    authorization: {credentials_file: $folder/$peer/keys/$peer.token}
    tls_config: {ca_file: $folder/$peer/keys/$peer-dashboard.crt, server_name: localhost}
    static_configs: [{targets: ["$at:7501"]}]
EOF
done < "$hosts"
