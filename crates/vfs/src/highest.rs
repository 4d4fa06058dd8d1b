//! The highest number of a page in a cache: no pointers here.

/// An upper bound of the numbers of the pages that are there.
#[derive(Debug, Default)]
pub(crate) struct Highest {
    number: u32,
    /// A page that was lifted above all others, and the highest number beside it.
    lifted: Option<Lifted>,
}

#[derive(Debug)]
struct Lifted {
    number: u32,
    beside: u32,
}

impl Highest {
    /// A page with that number is there.
    pub(crate) fn is_there(&mut self, number: u32) {
        self.number = self.number.max(number);
        if let Some(lifted) = &mut self.lifted
            && lifted.number != number
        {
            lifted.beside = lifted.beside.max(number);
        }
    }

    /// A page has another number from now on.
    pub(crate) fn moved(&mut self, before: u32, now: u32) {
        match &self.lifted {
            Some(lifted) if lifted.number == before => {
                *self = Self { number: lifted.beside.max(now), lifted: None };
            }
            None if now > self.number => {
                self.lifted = Some(Lifted { number: now, beside: self.number });
                self.number = now;
            }
            _ => self.is_there(now),
        }
    }

    /// Pages from that number on go. Says whether there may be any.
    pub(crate) fn cut(&mut self, from: u32) -> bool {
        if from > self.number {
            return false;
        }
        *self = Self { number: from.saturating_sub(1), lifted: None };
        true
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn who_swaps_two_pages_by_way_of_a_number_behind_all_others_leaves_nothing_there() {
        let mut highest = Highest::default();
        highest.is_there(7);
        highest.is_there(500);
        highest.moved(7, 262_145);
        highest.moved(500, 7);
        highest.is_there(501);
        highest.moved(262_145, 500);
        assert!(!highest.cut(502), "nothing is behind 501");
        assert!(highest.cut(501));
        assert!(!highest.cut(501), "it is gone");
        highest.moved(7, 262_145);
        assert!(highest.cut(502), "one is there");
    }

    /// Whatever is done to a cache, what is there is never behind what is said to be the highest.
    #[test]
    fn what_is_there_is_always_cut() {
        let mut seed = 1_u32;
        let mut roll = |sides: u32| {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 8) % sides
        };
        let (mut highest, mut there) = (Highest::default(), BTreeSet::new());
        let mut spared = 0;
        for _ in 0..100_000 {
            match roll(8) {
                0..4 => {
                    let number = 1 + roll(40);
                    there.insert(number);
                    highest.is_there(number);
                }
                4..7 => {
                    let now = if roll(3) == 0 { 100 + roll(3) } else { 1 + roll(40) };
                    let Some(before) = there.iter().copied().nth(roll(40) as usize) else { continue };
                    if !there.contains(&now) {
                        there.remove(&before);
                        there.insert(now);
                        highest.moved(before, now);
                    }
                }
                _ => {
                    let from = 20 + roll(30);
                    if !highest.cut(from) {
                        spared += 1;
                        assert!(there.range(from..).next().is_none(), "{from} of {there:?}");
                    }
                    there.retain(|number| *number < from);
                }
            }
        }
        assert!(spared > 1_000, "{spared}");
    }
}
