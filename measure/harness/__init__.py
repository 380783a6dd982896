"""How anything is timed and kept: samples, tables that survive a kill, campaigns, the machine."""
