"""What decode runs on any machine share."""
