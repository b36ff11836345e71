//! What is made of many programs: one graph of blocks.
//!
//! A world ([`super::worlds`]) is a place between two programs that ways lead to before it is known how the next program goes on
//! there, or whether it is kept apart from others at all. So ways name worlds, and are followed through them in the end.

use super::{condition::ConditionId, decision::NodeId, facts::Facts};

/// A block of [`Joined`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct BlockId(pub(super) u32);

/// What a block does.
#[derive(Debug, Clone)]
pub(super) enum Block {
    /// Goes one of two ways.
    Test {
        condition: ConditionId,
        yes: Way,
        no: Way,
    },
    /// Adds `bits` to the result where the questions from `node` on say so, and goes on. All loads that they need are
    /// checked on every way here.
    Sum {
        node: NodeId,
        facts: Facts,
        bits: u64,
        on: Way,
    },
}

/// A way out of a block.
#[derive(Debug, Clone, Copy)]
pub(super) struct Way {
    /// Added to the result.
    pub(super) bits: u64,
    pub(super) to: Target,
}

/// Where a way leads.
#[derive(Debug, Clone, Copy)]
pub(super) enum Target {
    Block(BlockId),
    /// A world before a program, by number.
    World {
        program: usize,
        world: usize,
    },
    /// The end of all programs.
    End,
}

/// All programs as one graph of blocks.
#[derive(Debug)]
pub(super) struct Joined {
    pub(super) blocks: Vec<Block>,
    /// For each program: which world each world became when there were too many, and how each of these goes on.
    pub(super) worlds: Vec<(Vec<usize>, Vec<Way>)>,
    /// The first way.
    pub(super) start: Way,
    /// All bits that it answers for.
    pub(super) bits: u64,
}

impl Joined {
    pub(super) fn get(&self, block: BlockId) -> &Block {
        &self.blocks[block.0 as usize]
    }

    /// The first block, and the bits of programs that keep every packet.
    pub(super) fn start(&self) -> (u64, Option<BlockId>) {
        self.end_of(self.start)
    }

    /// Where a way leads, past programs that have nothing to ask there, and what it adds. `None` at the end.
    pub(super) fn end_of(&self, way: Way) -> (u64, Option<BlockId>) {
        let mut way = way;
        let mut bits = 0;
        loop {
            bits |= way.bits;
            match way.to {
                Target::Block(block) => return (bits, Some(block)),
                Target::End => return (bits, None),
                Target::World { program, world } => {
                    let (became, ways) = &self.worlds[program];
                    way = ways[became[world]];
                }
            }
        }
    }
}
