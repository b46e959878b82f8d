//! Memory that is no longer needed.

/// Gives the system back what nobody holds: the allocator would keep it, and each step of a trial's end
/// takes tens of megabytes of its own where there are thousands of flows.
pub(super) fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes a number, and only frees what nobody holds.
    unsafe {
        nix::libc::malloc_trim(0);
    }
}
