//! Which calls fail on purpose.

/// The code that this call is to answer instead of doing its work; counts it.
pub fn check(_name: &str) -> Option<u32> {
    None
}
