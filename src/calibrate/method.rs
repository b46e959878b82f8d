//! How so many flows are compared: all of some, some of many.
//!
//! Tens of thousands of heartbeats a second take all that two processors have. Copying each packet to
//! the capture would take from the runner what its exactness under that load depends on.

/// Up to this many flows of each protocol all are compared, as they are by default: they enter by
/// another node than the pod's.
const ALL_OF: u32 = 2_000;
/// Of more, those are whose own port has these bits clear. Not the last bit: the kernel gives
/// connections even ports as long as there are any.
const BITS: u16 = 0b1110;

/// How the flows of a load are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Method {
    many: bool,
}

impl Method {
    /// For so many flows of each protocol.
    pub fn of(flows: u32) -> Self {
        Self { many: flows > ALL_OF }
    }

    /// The node that they enter by, as a scenario names it: many by the pod's own, which spares each
    /// packet a node on its way, and the processors as much.
    pub fn enter_by(self) -> &'static str {
        if self.many { "pod-node" } else { "other-node" }
    }

    /// Whether a node is one that the flows enter by, if it takes pods, or takes none.
    pub(super) fn enters_by(self, takes_pods: bool) -> bool {
        self.many == takes_pods
    }

    /// One flow in so many is compared.
    pub fn one_in(self) -> u32 {
        1 << self.clear_bits().count_ones()
    }

    /// Those that are compared have these bits of their own port clear. Ports are the kernel's choice, and
    /// have nothing to do with what becomes of a flow.
    pub(super) fn clear_bits(self) -> u16 {
        if self.many { BITS } else { 0 }
    }

    /// Whether the flow with this port of its own is compared.
    pub(super) fn compares(self, port: u16) -> bool {
        port & self.clear_bits() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_of_some_flows_and_one_in_eight_of_many() {
        let compared = |method: Method, step: usize| {
            (32_768..=u16::MAX).step_by(step).filter(|port| method.compares(*port)).count()
        };
        let (some, many) = (Method::of(1_000), Method::of(8_000));
        assert_eq!((compared(some, 1), some.one_in()), (32_768, 1));
        assert_eq!((compared(many, 1), many.one_in()), (4_096, 8));
        assert_eq!(compared(many, 2), 2_048, "of even ports, too");
    }

    #[test]
    fn what_is_listened_at_is_what_the_flows_enter_by() {
        assert!(Method::of(10).enters_by(false) && !Method::of(10).enters_by(true));
        assert!(Method::of(8_000).enters_by(true) && !Method::of(8_000).enters_by(false));
    }
}
