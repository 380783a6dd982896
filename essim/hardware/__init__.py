"""What a machine is: peaks, links and measured tables, each with its source."""
