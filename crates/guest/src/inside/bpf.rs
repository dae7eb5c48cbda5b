//! Assembles what to do about each system call into a program for the kernel's filter.
//!
//! The kernel tries the program for every call number when it is loaded, and translates all of it, which a start
//! has to wait for. So it is a search tree over the numbers, and as short as can be: ends are shared, and no
//! argument is loaded twice in a row.

use std::collections::BTreeMap;

use libc::sock_filter as Instruction;

pub(super) type Program = Vec<Instruction>;

/// What happens to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Allow,
    /// It fails with this error number.
    Refuse(i32),
    /// It fails with `EPERM` if one of these holds.
    RefuseIf(Vec<Rule>),
    /// It does nothing and says that it did, if one of these holds.
    IgnoreIf(Vec<Rule>),
}

/// Conditions that must all be met.
pub(super) type Rule = Vec<Condition>;

/// Something about one argument, of which the low 32 bits count: the kernel reads no more of any
/// number that is looked at here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Condition {
    Is {
        argument: u32,
        value: u32,
    },
    IsNot {
        argument: u32,
        value: u32,
    },
    /// The same of the high 32 bits, which pointers have.
    HighIsNot {
        argument: u32,
        value: u32,
    },
    /// The bits of `mask` have exactly this value.
    Bits {
        argument: u32,
        mask: u32,
        value: u32,
    },
    BitsAreNot {
        argument: u32,
        mask: u32,
        value: u32,
    },
    /// One of the bits of `mask` is set, or several.
    HasAnyOf {
        argument: u32,
        mask: u32,
    },
}

/// A program for these calls. Others are allowed up to the call `unknown_from`; that and all after it
/// fail as on a kernel that does not have them.
pub(super) fn assemble(calls: &BTreeMap<u32, Verdict>, unknown_from: u32) -> Program {
    let mut code = Code::default();
    let tree = code.search(&stretches(calls, unknown_from));
    code.go_to(tree);
    code.put(instruction(LOAD, NUMBER_OFFSET));
    // Calls of another architecture (i386 by `int 0x80`) have other numbers.
    code.put(instruction(RETURN, libc::SECCOMP_RET_KILL_PROCESS));
    code.put(jump(JUMP_IF_EQUAL, ARCHITECTURE, 1, 0));
    code.put(instruction(LOAD, ARCHITECTURE_OFFSET));
    code.backwards.reverse();
    code.backwards
}

/// Where what is done changes: each verdict with the first call that it is for.
fn stretches(calls: &BTreeMap<u32, Verdict>, unknown_from: u32) -> Vec<(u32, Verdict)> {
    let mut stretches: Vec<(u32, Verdict)> = Vec::new();
    let known = (0..unknown_from).map(|call| calls.get(&call).cloned().unwrap_or(Verdict::Allow));
    let unknown = Verdict::Refuse(libc::ENOSYS);
    for (call, verdict) in (0..).zip(known.chain([unknown])) {
        if stretches.last().is_none_or(|(_, last)| *last != verdict) {
            stretches.push((call, verdict));
        }
    }
    stretches
}

/// A program as it is written: from its end to its start, since every jump leads forward and so to what is known.
#[derive(Default)]
struct Code {
    backwards: Program,
    /// Where what was written for a verdict begins.
    verdicts: Vec<(Verdict, Entry)>,
    /// For places that need a value loaded, where that is done first.
    loads: BTreeMap<Place, Place>,
}

/// An instruction, by how many come after it.
type Place = usize;

/// Where a piece of the program begins, and the value that it needs to find loaded, if it looks at one at once.
#[derive(Clone, Copy, Debug)]
struct Entry {
    place: Place,
    needs: Option<u32>,
}

/// Further than this no condition can jump, with room for what may have to come between.
const REACH: usize = 250;

impl Code {
    fn put(&mut self, instruction: Instruction) -> Place {
        self.backwards.push(instruction);
        self.backwards.len() - 1
    }

    /// How many instructions lie between the next one that is written and that place.
    fn distance(&self, place: Place) -> usize {
        self.backwards.len() - place - 1
    }

    /// Makes sure that what is written next is followed by that place.
    fn go_to(&mut self, place: Place) {
        if self.distance(place) > 0 {
            let distance = self.distance(place) as u32;
            self.put(instruction(JUMP, distance));
        }
    }

    /// A place that a condition can jump to in order to arrive there.
    fn reachable(&mut self, place: Place) -> Place {
        if self.distance(place) <= REACH {
            return place;
        }
        self.go_to(place);
        self.backwards.len() - 1
    }

    /// The same for an entry, from where `loaded` is loaded.
    fn reachable_with(&mut self, entry: Entry, loaded: Option<u32>) -> Place {
        let place = match entry.needs {
            Some(offset) if loaded != Some(offset) => self.load_before(entry.place, offset),
            _ => entry.place,
        };
        self.reachable(place)
    }

    fn load_before(&mut self, place: Place, offset: u32) -> Place {
        if let Some(load) = self.loads.get(&place) {
            return *load;
        }
        self.go_to(place);
        let load = self.put(instruction(LOAD, offset));
        self.loads.insert(place, load);
        load
    }

    /// Decides by what is loaded, and goes on in either place.
    fn decide(&mut self, code: u32, value: u32, met: Place, unmet: Place) -> Place {
        let offset = |place| u8::try_from(place).expect("the place is within reach");
        let (met, unmet) = (offset(self.distance(met)), offset(self.distance(unmet)));
        self.put(jump(code, value, met, unmet))
    }

    fn search(&mut self, stretches: &[(u32, Verdict)]) -> Place {
        const NUMBER: Option<u32> = Some(NUMBER_OFFSET);
        if let [(_, verdict)] = stretches {
            let entry = self.verdict(verdict);
            return self.reachable_with(entry, NUMBER);
        }
        let (low, high) = stretches.split_at(stretches.len() / 2);
        let first_of_high = high[0].0;
        let (high, low) = (self.search(high), self.search(low));
        let (high, low) = (self.reachable(high), self.reachable(low));
        self.decide(JUMP_IF_AT_LEAST, first_of_high, high, low)
    }

    fn verdict(&mut self, verdict: &Verdict) -> Entry {
        let is_short = matches!(verdict, Verdict::Allow | Verdict::Refuse(_));
        let written = self.verdicts.iter().rev().find(|(other, _)| other == verdict);
        if let Some((_, entry)) = written
            // A short one is written again where it would be far.
            && (!is_short || self.distance(entry.place) <= REACH)
        {
            return *entry;
        }
        let entry = match verdict {
            Verdict::Allow => self.end(instruction(RETURN, libc::SECCOMP_RET_ALLOW)),
            Verdict::Refuse(errno) => self.end(refuse(*errno)),
            Verdict::RefuseIf(rules) => self.if_any_holds(rules, refuse(libc::EPERM)),
            Verdict::IgnoreIf(rules) => self.if_any_holds(rules, refuse(NO_ERROR)),
        };
        self.verdicts.push((verdict.clone(), entry));
        entry
    }

    fn end(&mut self, end: Instruction) -> Entry {
        Entry { place: self.put(end), needs: None }
    }

    fn if_any_holds(&mut self, rules: &[Rule], end: Instruction) -> Entry {
        let (mut next, end) = (self.verdict(&Verdict::Allow), self.end(end));
        for rule in rules.iter().rev() {
            let mut rest = end;
            for condition in rule.iter().rev() {
                rest = self.check(*condition, rest, next);
            }
            next = rest;
        }
        next
    }

    fn check(&mut self, condition: Condition, met: Entry, unmet: Entry) -> Entry {
        let low = |argument| FIRST_ARGUMENT_OFFSET + 8 * argument;
        let (offset, mask, code, value, is_met_if_so) = match condition {
            Condition::Is { argument, value } => (low(argument), None, JUMP_IF_EQUAL, value, true),
            Condition::IsNot { argument, value } => {
                (low(argument), None, JUMP_IF_EQUAL, value, false)
            }
            Condition::HighIsNot { argument, value } => {
                (low(argument) + 4, None, JUMP_IF_EQUAL, value, false)
            }
            Condition::Bits { argument, mask, value } => {
                (low(argument), Some(mask), JUMP_IF_EQUAL, value, true)
            }
            Condition::BitsAreNot { argument, mask, value } => {
                (low(argument), Some(mask), JUMP_IF_EQUAL, value, false)
            }
            Condition::HasAnyOf { argument, mask } => {
                (low(argument), None, JUMP_IF_ANY_BIT, mask, true)
            }
        };
        // What is left of a value under a mask is not what others need.
        let loaded = mask.is_none().then_some(offset);
        let (so, not) = if is_met_if_so { (met, unmet) } else { (unmet, met) };
        let so = self.reachable_with(so, loaded);
        let not = self.reachable_with(not, loaded);
        let mut place = self.decide(code, value, so, not);
        if let Some(mask) = mask {
            place = self.put(instruction(AND, mask));
        }
        Entry { place, needs: Some(offset) }
    }
}

/// With this number a call that is not made returns 0.
const NO_ERROR: i32 = 0;

fn refuse(errno: i32) -> Instruction {
    instruction(RETURN, libc::SECCOMP_RET_ERRNO | errno as u32)
}

// Where things are in the kernel's `struct seccomp_data`. Both architectures put the low half of an
// argument first.
const NUMBER_OFFSET: u32 = 0;
const ARCHITECTURE_OFFSET: u32 = 4;
const FIRST_ARGUMENT_OFFSET: u32 = 16;

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;

const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const AND: u32 = libc::BPF_ALU | libc::BPF_AND | libc::BPF_K;
const JUMP: u32 = libc::BPF_JMP | libc::BPF_JA;
const JUMP_IF_EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const JUMP_IF_ANY_BIT: u32 = libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K;
const JUMP_IF_AT_LEAST: u32 = libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K;
const RETURN: u32 = libc::BPF_RET | libc::BPF_K;

fn instruction(code: u32, k: u32) -> Instruction {
    Instruction { code: code as u16, jt: 0, jf: 0, k }
}

fn jump(code: u32, k: u32, if_so: u8, if_not: u8) -> Instruction {
    Instruction { code: code as u16, jt: if_so, jf: if_not, k }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the kernel does with a program, for one call.
    fn run(program: &Program, architecture: u32, number: u32, arguments: [u64; 6]) -> u32 {
        let mut data = [number, architecture, 0, 0].map(u32::to_ne_bytes).concat();
        data.extend(arguments.iter().flat_map(|argument| argument.to_ne_bytes()));
        let (mut at, mut value) = (0, 0);
        loop {
            let Instruction { code, jt, jf, k } = program[at];
            at += 1;
            let choose = |met: bool| usize::from(if met { jt } else { jf });
            match u32::from(code) {
                LOAD => {
                    let word = &data[k as usize..k as usize + 4];
                    value = u32::from_ne_bytes(word.try_into().unwrap());
                }
                AND => value &= k,
                JUMP => at += k as usize,
                JUMP_IF_EQUAL => at += choose(value == k),
                JUMP_IF_AT_LEAST => at += choose(value >= k),
                JUMP_IF_ANY_BIT => at += choose(value & k != 0),
                RETURN => return k,
                other => panic!("the kernel's quick test does not know {other:#x}"),
            }
        }
    }

    const ALLOWED: u32 = libc::SECCOMP_RET_ALLOW;

    fn refused(errno: i32) -> u32 {
        libc::SECCOMP_RET_ERRNO | errno as u32
    }

    #[test]
    fn every_call_meets_its_verdict() {
        // So many that a condition cannot jump over half of them.
        let calls: BTreeMap<u32, Verdict> =
            (0..900).filter(|call| call % 3 == 0).map(|call| (call, Verdict::Refuse(1))).collect();
        let program = assemble(&calls, 1000);
        for call in 0..1200 {
            let expected = match call {
                1000.. => refused(libc::ENOSYS),
                _ if calls.contains_key(&call) => refused(1),
                _ => ALLOWED,
            };
            assert_eq!(run(&program, ARCHITECTURE, call, [0; 6]), expected, "{call}");
        }
        let x32 = 0x4000_0000 | 7;
        assert_eq!(run(&program, ARCHITECTURE, x32, [0; 6]), refused(libc::ENOSYS));
        let i386 = 0x4000_0003;
        assert_eq!(run(&program, i386, 7, [0; 6]), libc::SECCOMP_RET_KILL_PROCESS);
    }

    #[test]
    fn arguments_are_looked_at_in_their_low_halves() {
        let rules = vec![
            vec![
                Condition::IsNot { argument: 0, value: 1 },
                Condition::IsNot { argument: 0, value: 2 },
            ],
            vec![
                Condition::Is { argument: 0, value: 2 },
                Condition::Bits { argument: 1, mask: 0xf, value: 3 },
            ],
        ];
        let program = assemble(&BTreeMap::from([(41, Verdict::RefuseIf(rules))]), 100);
        let high = 7 << 32;
        for (arguments, expected) in [
            ([1, 0], ALLOWED),
            ([1 | high, 0], ALLOWED),
            ([3, 0], refused(libc::EPERM)),
            ([2, 0x13], refused(libc::EPERM)),
            ([2, 0x13 | high], refused(libc::EPERM)),
            ([2, 0x14], ALLOWED),
            ([1, 3], ALLOWED),
        ] {
            let [first, second] = arguments;
            let all = [first, second, 0, 0, 0, 0];
            assert_eq!(run(&program, ARCHITECTURE, 41, all), expected, "{arguments:?}");
            assert_eq!(run(&program, ARCHITECTURE, 40, all), ALLOWED);
        }
    }

    #[test]
    fn pointers_are_looked_at_in_both_halves() {
        let to_four = Condition::Is { argument: 0, value: 4 };
        let rules = vec![
            vec![to_four, Condition::IsNot { argument: 1, value: 0 }],
            vec![to_four, Condition::HighIsNot { argument: 1, value: 0 }],
        ];
        let program = assemble(&BTreeMap::from([(41, Verdict::IgnoreIf(rules))]), 100);
        for (arguments, expected) in [
            ([4, 0], ALLOWED),
            ([4, 1], refused(0)),
            ([4, 1 << 32], refused(0)),
            ([4, u64::MAX], refused(0)),
            ([4 | 1 << 32, 1], refused(0)),
            ([5, 1], ALLOWED),
        ] {
            let [first, second] = arguments;
            let all = [first, second, 0, 0, 0, 0];
            assert_eq!(run(&program, ARCHITECTURE, 41, all), expected, "{arguments:?}");
        }
    }

    /// Numbers that nobody chose, the same in every run.
    struct Chance(u64);

    impl Chance {
        fn below(&mut self, most: u64) -> u64 {
            self.0 = self
                .0
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) % most
        }

        fn condition(&mut self) -> Condition {
            let (argument, value) = (self.below(3) as u32, self.below(4) as u32);
            let mask = self.below(4) as u32;
            match self.below(6) {
                0 => Condition::Is { argument, value },
                1 => Condition::IsNot { argument, value },
                2 => Condition::HighIsNot { argument, value },
                3 => Condition::Bits { argument, mask, value },
                4 => Condition::BitsAreNot { argument, mask, value },
                _ => Condition::HasAnyOf { argument, mask },
            }
        }

        fn rules(&mut self) -> Vec<Rule> {
            let rule = |chance: &mut Self| {
                let count = 1 + chance.below(4);
                (0..count).map(|_| chance.condition()).collect()
            };
            let count = 1 + self.below(5);
            (0..count).map(|_| rule(self)).collect()
        }

        fn verdict(&mut self) -> Verdict {
            match self.below(6) {
                0 => Verdict::Allow,
                1 | 2 => Verdict::Refuse(1 + self.below(2) as i32),
                3 | 4 => Verdict::RefuseIf(self.rules()),
                _ => Verdict::IgnoreIf(self.rules()),
            }
        }
    }

    fn is_met(condition: Condition, arguments: [u64; 6]) -> bool {
        let low = |argument: u32| arguments[argument as usize] as u32;
        let high = |argument: u32| (arguments[argument as usize] >> 32) as u32;
        match condition {
            Condition::Is { argument, value } => low(argument) == value,
            Condition::IsNot { argument, value } => low(argument) != value,
            Condition::HighIsNot { argument, value } => high(argument) != value,
            Condition::Bits { argument, mask, value } => low(argument) & mask == value,
            Condition::BitsAreNot { argument, mask, value } => low(argument) & mask != value,
            Condition::HasAnyOf { argument, mask } => low(argument) & mask != 0,
        }
    }

    fn meant(verdict: &Verdict, arguments: [u64; 6]) -> u32 {
        let holds = |rules: &[Rule]| {
            rules.iter().any(|rule| rule.iter().all(|condition| is_met(*condition, arguments)))
        };
        match verdict {
            Verdict::Refuse(errno) => refused(*errno),
            Verdict::RefuseIf(rules) if holds(rules) => refused(libc::EPERM),
            Verdict::IgnoreIf(rules) if holds(rules) => refused(NO_ERROR),
            _ => ALLOWED,
        }
    }

    #[test]
    fn whatever_the_rules_are_the_program_does_what_they_say() {
        let mut chance = Chance(7);
        for count in [1, 2, 5, 40, 300] {
            for _ in 0..20 {
                // A few verdicts for many calls, so that ends are shared, near and far.
                let verdicts: Vec<Verdict> = (0..12).map(|_| chance.verdict()).collect();
                let calls: BTreeMap<u32, Verdict> = (0..count)
                    .map(|call| (call, verdicts[chance.below(12) as usize].clone()))
                    .collect();
                let program = assemble(&calls, count);
                for (call, verdict) in &calls {
                    for _ in 0..10 {
                        let arguments = [(); 6].map(|()| chance.below(4) | chance.below(3) << 32);
                        let done = run(&program, ARCHITECTURE, *call, arguments);
                        assert_eq!(done, meant(verdict, arguments), "{verdict:?} {arguments:?}");
                    }
                }
                assert_eq!(run(&program, ARCHITECTURE, count, [0; 6]), refused(libc::ENOSYS));
            }
        }
    }
}
