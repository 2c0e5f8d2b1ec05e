//! Two regions over TCP on this machine, with buckets in folders.
