//! Tail, checkpoint (SlateDB), multi-version keys, retention.
