"""What the CORE stage is made of: the bundle's files, scoring a task on the devices, records and results."""
