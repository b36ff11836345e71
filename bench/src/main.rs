//! The program behind `make bench` and `make bench-quick`.

fn main() {}
