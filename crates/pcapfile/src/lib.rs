//! pcapfile
