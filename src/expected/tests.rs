//! Expected values against arithmetic by hand.
