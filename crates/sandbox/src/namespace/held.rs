//! Which sandboxes this process holds, so that no sweep takes one of them for an orphan.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use crate::backend::SandboxName;

/// The names of all sandboxes that are being started or driven here, and of those being swept away.
#[derive(Default)]
pub(super) struct HeldNames {
    state: Mutex<State>,
    swept: Condvar,
}

#[derive(Default)]
struct State {
    /// How many hold each.
    held: HashMap<SandboxName, usize>,
    being_swept: HashSet<SandboxName>,
}

/// Keeps a name from being swept for as long as it lives.
pub(super) struct Hold {
    names: Arc<HeldNames>,
    name: SandboxName,
}

/// The name of a sandbox, and the one that it was made under if that is another: its processes and
/// control groups still have it.
pub(super) struct Holds {
    pub(super) _name: Hold,
    pub(super) _made_as: Option<Hold>,
}

impl HeldNames {
    /// Takes hold of a name. Blocks while a sandbox of this name is being swept away.
    pub(super) fn hold(self: &Arc<Self>, name: &SandboxName) -> Hold {
        let mut state = self.lock();
        while state.being_swept.contains(name) {
            state = self.swept.wait(state).expect("no code panics while it holds this lock");
        }
        *state.held.entry(name.clone()).or_default() += 1;
        Hold { names: self.clone(), name: name.clone() }
    }

    /// Runs `work` unless somebody holds the name; nobody can take hold of it meanwhile.
    pub(super) fn sweep(&self, name: &SandboxName, work: impl FnOnce()) -> bool {
        {
            let mut state = self.lock();
            if state.held.contains_key(name) || !state.being_swept.insert(name.clone()) {
                return false;
            }
        }
        let _end = EndOfSweep { names: self, name };
        work();
        true
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no code panics while it holds this lock")
    }
}

/// However the work ends, whoever waits for the name must not wait for ever.
struct EndOfSweep<'a> {
    names: &'a HeldNames,
    name: &'a SandboxName,
}

impl Drop for EndOfSweep<'_> {
    fn drop(&mut self) {
        self.names.lock().being_swept.remove(self.name);
        self.names.swept.notify_all();
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut state = self.names.lock();
        if let Some(count) = state.held.get_mut(&self.name) {
            *count -= 1;
            if *count == 0 {
                state.held.remove(&self.name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_is_not_swept() {
        let names = Arc::new(HeldNames::default());
        let name = SandboxName::throwaway();
        let (first, second) = (names.hold(&name), names.hold(&name));
        let mut swept = 0;
        assert!(!names.sweep(&name, || swept += 1));
        drop(first);
        assert!(!names.sweep(&name, || swept += 1));
        drop(second);
        assert!(names.sweep(&name, || swept += 1));
        assert_eq!(swept, 1);
    }

    #[test]
    fn a_start_waits_for_the_sweep_of_its_name() {
        let names = Arc::new(HeldNames::default());
        let name = SandboxName::throwaway();
        let (begun, wait) = std::sync::mpsc::channel();
        let (go, gone) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let (names, name) = (&names, &name);
            scope.spawn(move || {
                names.sweep(name, || {
                    begun.send(()).unwrap();
                    gone.recv().unwrap();
                });
            });
            wait.recv().unwrap();
            let started = scope.spawn(move || names.hold(name));
            // Another name does not wait.
            drop(names.hold(&SandboxName::throwaway()));
            assert!(!started.is_finished());
            go.send(()).unwrap();
            let hold = started.join().unwrap();
            assert!(!names.sweep(name, || panic!("it is held")));
            drop(hold);
        });
    }
}
