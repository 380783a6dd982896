"""Quest's router and page summaries."""
