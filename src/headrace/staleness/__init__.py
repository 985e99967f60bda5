"""Which group may be admitted, and which must be trained next: pure functions of versions and deadlines."""
