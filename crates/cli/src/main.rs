//! The `retroscope` program.

fn main() {}
