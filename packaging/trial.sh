#!/bin/sh
# Make the folder `consortium` for a trial of packaging/compose.yaml: four sites, a relay, keys, rows and a study.
# Between organisations each makes its own key (docs/how-to/two-organisations.md); here they are all made at one place.
#
#     DEKRR=.venv/bin/dekrr sh packaging/trial.sh     # as root: the folders are given to the user of the image
set -eu
cd "$(dirname "$0")/.."
dekrr=${DEKRR:-.venv/bin/dekrr}

mkdir consortium
$dekrr network example --sites 4 consortium/authority
printf '[[site]]\nname = "relay"\nendpoint = "relay:7700"\ndata = "-"\n' >>consortium/authority/network.toml
$dekrr network init consortium/authority/network.toml

keys='[keys]
authority = "authority.pem"
certificate = "certificate.pem"
key = "key.pem"'
stations='station-00 station-01 station-02 station-03'
for name in $stations relay; do
    made=consortium/authority/sites/$name
    mkdir "consortium/$name"
    cp "$made/authority.pem" "$made/certificate.pem" "$made/key.pem" "consortium/$name"
done
for name in $stations; do
    cp "consortium/authority/$name.csv" "consortium/$name/rows.csv"
    {
        printf 'site = "%s"\nrelay = "relay:7700"\n[neighbors]\n' "$name"
        for other in $stations; do
            [ "$other" = "$name" ] || printf '%s = "relay"\n' "$other"
        done
        printf '[sources]\nrows = "rows.csv"\n%s\n' "$keys"
    } >"consortium/$name/site.toml"
    printf 'approval = "policy"\nmethods = ["dekrr"]\nmost_features = 50\n' >"consortium/$name/policy.toml"
done
cat >consortium/relay/relay.toml <<END
name = "relay"
listen = "0.0.0.0:7700"
sites = ["station-00", "station-01", "station-02", "station-03"]
$keys
END
cat >consortium/station-00/study.toml <<END
name = "trial"
sites = ["station-00", "station-01", "station-02", "station-03"]
source = "rows"
expires = 2099-12-31
[data]
target = "y"
columns = ["place", "x1", "x2"]
[settings]
n_features = 30
sigma = 0.3
alpha = 1e-4
consensus = 1.0
shared = 50
END
chown -R 10001 consortium/relay consortium/station-*
echo "Next: podman-compose -f packaging/compose.yaml up -d"
