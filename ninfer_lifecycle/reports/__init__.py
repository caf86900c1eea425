"""Reports: what people and machines look at. Every one is made from a verified receipt; none reads a raw one."""
