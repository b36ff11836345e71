//! What became of a rule, for people.

use std::fmt;

use retroscope_packet::LinkType;

use crate::{FilterError, NativeInfo, Program};

/// How packets find a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// By look-ups alone.
    LookedUp,
    /// By look-ups, and then its program is run, on those packets only.
    Narrowed,
    /// Its program is run on every packet, together with those of others where it can be joined.
    Compiled,
    /// By look-ups, and then the caller is asked ([`Sure::Ask`](super::Sure::Ask)).
    NarrowedAsked,
    /// The caller is asked about every packet.
    Asked,
}

/// Where [`RuleSet::insert`](super::RuleSet::insert) put a rule.
#[derive(Debug)]
#[must_use]
pub struct Placed {
    /// How packets find it.
    pub placement: Placement,
    /// Link types of the set whose packets it does not match, because libpcap refuses it there.
    pub refused: Vec<(LinkType, FilterError)>,
}

/// What became of a rule; prints as a few lines.
#[derive(Debug, Clone)]
pub struct Explanation {
    /// How packets find it.
    pub placement: Placement,
    /// What it is looked up by, and how many primitives are compared after that.
    pub look_ups: Vec<(String, usize)>,
    /// Its programs, by link type, where it has any.
    pub programs: Vec<(LinkType, Program)>,
    /// The rules that its program is compiled together with, where it is run on every packet of a link type.
    pub together: Vec<Together>,
}

/// Rules whose programs are one function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Together {
    /// Of these packets.
    pub link_type: LinkType,
    /// How many they are, itself among them, without those that were taken out since they were put together.
    pub rules: usize,
    /// Their machine code; `None` as long as there is none for all of them. Until then the code before answers for those that
    /// it knows, if there was any, and the others run by themselves.
    pub native: Option<NativeInfo>,
}

/// Look-ups printed one by one.
const SHOWN: usize = 8;

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LookedUp => "look-ups alone",
            Self::Narrowed => "look-ups, then its program",
            Self::Compiled => "its program, on every packet",
            Self::NarrowedAsked => "look-ups, then the whole expression",
            Self::Asked => "the whole expression, on every packet",
        })
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "found by {}", self.placement)?;
        for (sought, compared) in self.look_ups.iter().take(SHOWN) {
            write!(f, "\n  {sought}")?;
            match compared {
                0 => {}
                1 => write!(f, ", then 1 primitive compared")?,
                count => write!(f, ", then {count} primitives compared")?,
            }
        }
        if self.look_ups.len() > SHOWN {
            write!(f, "\n  and {} more", self.look_ups.len() - SHOWN)?;
        }
        for (link_type, program) in &self.programs {
            let count = program.instructions().len();
            write!(
                f,
                "\n  program for link type {}: {count} instructions",
                link_type.0
            )?;
        }
        for together in &self.together {
            let Together {
                link_type, rules, ..
            } = together;
            write!(
                f,
                "\n  one of {rules} rules asked together for link type {}",
                link_type.0
            )?;
            if let Some(native) = together.native {
                let ms = native.compile_time.as_secs_f64() * 1e3;
                write!(
                    f,
                    ": {} bytes of machine code, {ms:.2} ms",
                    native.code_bytes
                )?;
            }
        }
        Ok(())
    }
}
