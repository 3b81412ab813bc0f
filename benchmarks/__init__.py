"""Speed, as ratios measured in one run. `make bench` runs them all."""
