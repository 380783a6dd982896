"""What a proxy query does to the choice of pages and to the output, on real weights."""
