//! dw
fn main() {}
