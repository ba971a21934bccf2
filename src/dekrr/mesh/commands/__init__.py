"""The commands of sites that are processes: `node`, `status`, `up`, `network`, `keys`, `study`, `audit`, `relay`."""
