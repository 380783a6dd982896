"""Tables and figures of the docs: each public function of these modules makes one."""
