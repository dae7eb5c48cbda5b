//! How a build tells where it stands. Knows nothing of terminals: whoever watches draws.

use std::sync::Mutex;

/// The stages of a build, in the order in which they are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    Resolve,
    EssentialPackages,
    Packages,
    PythonPackages,
    NpmPackages,
    Finish,
}

impl Stage {
    pub const ALL: [Self; 6] = [
        Self::Resolve,
        Self::EssentialPackages,
        Self::Packages,
        Self::PythonPackages,
        Self::NpmPackages,
        Self::Finish,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Resolve => "resolve packages",
            Self::EssentialPackages => "essential packages",
            Self::Packages => "packages",
            Self::PythonPackages => "Python packages",
            Self::NpmPackages => "npm packages",
            Self::Finish => "finish",
        }
    }
}

impl std::fmt::Display for Stage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Where a stage stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    pub stage: Stage,
    /// In units that only mean something beside `total`.
    pub done: u64,
    /// Zero while nobody can say.
    pub total: u64,
    /// What is being done right now, such as `unpacking git`; may be empty.
    pub detail: String,
}

impl Progress {
    pub(super) fn start_of(stage: Stage) -> Self {
        Self { stage, done: 0, total: 0, detail: String::new() }
    }
}

/// Watches a build. Stages come in order and within one of them `done` never falls.
pub trait Reporter: Send + Sync {
    fn progress(&self, progress: &Progress);

    /// Something a person should know, such as what the build is waiting for.
    fn note(&self, text: &str);
}

/// Watches nothing.
pub struct Silent;

impl Reporter for Silent {
    fn progress(&self, _: &Progress) {}
    fn note(&self, _: &str) {}
}

/// Shows stages in order although some of them run side by side: only the first stage that is
/// not finished is shown.
pub(super) struct StageBoard<'a> {
    reporter: &'a dyn Reporter,
    stages: Mutex<Vec<(Progress, bool)>>,
}

impl<'a> StageBoard<'a> {
    pub(super) fn new(reporter: &'a dyn Reporter) -> Self {
        let stages = Stage::ALL.map(|stage| (Progress::start_of(stage), false)).to_vec();
        Self { reporter, stages: Mutex::new(stages) }
    }

    pub(super) fn update(&self, progress: Progress) {
        let mut stages = self.lock();
        let shown = stages.iter().position(|(_, finished)| !finished);
        let place = progress.stage as usize;
        stages[place].0 = progress;
        if shown == Some(place) {
            self.reporter.progress(&stages[place].0);
        }
    }

    pub(super) fn finished(&self, done: &[Stage]) {
        let mut stages = self.lock();
        let shown = stages.iter().position(|(_, finished)| !finished);
        for stage in done {
            stages[*stage as usize].1 = true;
        }
        let next = stages.iter().position(|(_, finished)| !finished);
        if let Some(place) = next.filter(|_| next != shown) {
            self.reporter.progress(&stages[place].0);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<(Progress, bool)>> {
        self.stages.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Shown(Mutex<Vec<(Stage, u64)>>);

    impl Reporter for Shown {
        fn progress(&self, progress: &Progress) {
            self.0.lock().unwrap().push((progress.stage, progress.done));
        }
        fn note(&self, _: &str) {}
    }

    #[test]
    fn stages_that_run_side_by_side_are_shown_in_order() {
        let shown = Shown::default();
        let board = StageBoard::new(&shown);
        let at = |stage, done| Progress { done, ..Progress::start_of(stage) };
        board.update(at(Stage::Resolve, 1));
        board.update(at(Stage::PythonPackages, 7));
        board.finished(&[Stage::Resolve]);
        board.update(at(Stage::EssentialPackages, 2));
        board.finished(&[Stage::NpmPackages]);
        board.finished(&[Stage::EssentialPackages, Stage::Packages]);
        board.finished(&[Stage::PythonPackages]);
        let expected = [
            (Stage::Resolve, 1),
            (Stage::EssentialPackages, 0),
            (Stage::EssentialPackages, 2),
            (Stage::PythonPackages, 7),
            (Stage::Finish, 0),
        ];
        assert_eq!(*shown.0.lock().unwrap(), expected);
    }
}
