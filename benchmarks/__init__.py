"""What the gateway costs, each against an anchor measured in the same run."""
