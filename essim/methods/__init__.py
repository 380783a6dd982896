"""What is chosen and where: KV selectors, and the routing that runs them."""
