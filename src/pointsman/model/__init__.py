"""Pure logic: objects in, one backend-neutral plan per service port out. No I/O, no clock."""
