"""`fold`: several events of a key become one."""
