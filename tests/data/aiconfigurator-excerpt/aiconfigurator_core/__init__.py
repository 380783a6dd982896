"""An excerpt of the tables of aiconfigurator-core (see README.md)."""
