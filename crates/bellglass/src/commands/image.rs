//! `bellglass image`: build, list and inspect images.

use std::io::IsTerminal as _;
use std::sync::Mutex;
use std::time::Instant;

use anyhow::Context as _;
use bellglass_protocol::quantity::ByteSize;
use bellglass_sandbox::image::{
    BuildOptions, Cache, ImageStore, Progress, Recipe, Reporter, Stage, build,
};
use indicatif::{ProgressBar, ProgressStyle};

use super::interruption::Interruptions;
use super::{Format, print_json};
use crate::cli;
use crate::config::Config;
use crate::exit::Exit;
use crate::image_retention;

pub(super) async fn image(
    config: &Config,
    command: cli::Image,
    format: Format,
) -> anyhow::Result<Exit> {
    match command {
        cli::Image::Build { name, recipe, force, images } => {
            let store = ImageStore::new(config.images(&images)?);
            let recipe = match recipe {
                Some(path) => load_recipe(&path)?,
                None => Recipe::named(&name).with_context(|| {
                    let names = Recipe::NAMES.join(", ");
                    format!("there is no recipe named `{name}`: there are {names}; use --recipe FILE for your own")
                })?,
            };
            let cache = if force { Cache::Rebuild } else { Cache::Use };
            build_image(&store, &recipe, cache, format).await
        }
        cli::Image::List { images } => list(&ImageStore::new(config.images(&images)?), format),
        cli::Image::Prune { keep, images } => {
            let keep = keep.or(config.file.image.keep).unwrap_or_default();
            prune(&ImageStore::new(config.images(&images)?), keep, format)
        }
        cli::Image::Inspect { name, images } => {
            inspect(&ImageStore::new(config.images(&images)?), &name, format)
        }
    }
}

async fn build_image(
    store: &ImageStore,
    recipe: &Recipe,
    cache: Cache,
    format: Format,
) -> anyhow::Result<Exit> {
    let display = Display::new();
    let options = BuildOptions { cache, environment: certificates_of_the_host() };
    let started = Instant::now();
    // Caught before anything is made that a sudden end would leave behind.
    let mut interruptions = Interruptions::catch()?;
    let built = tokio::select! {
        built = build(recipe, store, &options, &display) => Ok(built),
        signal = interruptions.next() => Err(signal),
    };
    display.clear();
    let built = match built {
        Ok(built) => built,
        Err(signal) => {
            // The build is over and has cleared away what it made; this tells if it could not.
            store.sweep().with_context(|| format!("interrupted by {signal}"))?;
            anyhow::bail!("interrupted by {signal}; nothing half-made is left");
        }
    };
    let image = built.with_context(|| format!("cannot build the image `{}`", recipe.name))?;
    match format {
        Format::Json => print_json(&image)?,
        Format::Text => println!(
            "image {} {} ready in {:.1} s: {}, {} packages",
            image.name,
            image.hash.short(),
            started.elapsed().as_secs_f64(),
            ByteSize(image.size_bytes),
            image.packages
        ),
    }
    Ok(Exit::Success)
}

/// npm and pip trust a list of their own unless they are told of the host's, which may know more.
fn certificates_of_the_host() -> Vec<(String, String)> {
    const OF_DEBIAN: &str = "/etc/ssl/certs/ca-certificates.crt";
    let bundle = std::env::var("SSL_CERT_FILE").unwrap_or_else(|_| OF_DEBIAN.into());
    let readers = ["NODE_EXTRA_CA_CERTS", "PIP_CERT"].into_iter();
    let untold = readers.filter(|name| std::env::var_os(name).is_none());
    let told = untold.map(|name| (name.to_owned(), bundle.clone()));
    if std::path::Path::new(&bundle).is_file() { told.collect() } else { Vec::new() }
}

fn list(store: &ImageStore, format: Format) -> anyhow::Result<Exit> {
    let images = store.list();
    if format == Format::Json {
        print_json(&images)?;
        return Ok(Exit::Success);
    }
    if images.is_empty() {
        println!("no images; build one with `bellglass image build`");
        return Ok(Exit::Success);
    }
    println!("{:12}  {:12}  {:>10}  {:>8}  BUILT", "NAME", "HASH", "SIZE", "PACKAGES");
    for image in images {
        let built: String = image.built_at.to_string().chars().take(19).collect();
        let size = ByteSize(image.size_bytes).to_string();
        let old = if image.current { "" } else { "  (replaced)" };
        println!(
            "{:12}  {:12}  {size:>10}  {:>8}  {built}{old}",
            image.name,
            image.hash.short(),
            image.packages
        );
    }
    Ok(Exit::Success)
}

fn prune(store: &ImageStore, keep: usize, format: Format) -> anyhow::Result<Exit> {
    let removed = image_retention::prune(store, keep)?;
    if format == Format::Json {
        print_json(&removed)?;
        return Ok(Exit::Success);
    }
    if removed.is_empty() {
        println!("nothing to remove");
    }
    for image in removed {
        println!("removed {} {}: {}", image.name, image.hash.short(), ByteSize(image.size_bytes));
    }
    Ok(Exit::Success)
}

fn inspect(store: &ImageStore, name: &str, format: Format) -> anyhow::Result<Exit> {
    let image = store.inspect(name).with_context(|| {
        format!("there is no image named `{name}`; `bellglass image list` shows those there are")
    })?;
    if format == Format::Json {
        print_json(&image)?;
        return Ok(Exit::Success);
    }
    let info = &image.info;
    println!("image    {} {}", info.name, info.hash.as_str());
    println!("rootfs   {}", info.rootfs.display());
    println!("built    {}", info.built_at);
    println!("size     {}", ByteSize(info.size_bytes));
    // As it was when the image was built; `image build --recipe` takes it in this form.
    println!("recipe\n\n{}", toml::to_string_pretty(&info.recipe)?);
    println!("packages {}", image.installed.len());
    for package in &image.installed {
        let source = serde_json::to_value(package.source)?;
        println!(
            "  {:7} {} {}",
            source.as_str().unwrap_or_default(),
            package.name,
            package.version
        );
    }
    Ok(Exit::Success)
}

/// A bar on a terminal, a line for each stage elsewhere; on standard error.
struct Display {
    bar: Option<ProgressBar>,
    last_stage: Mutex<Option<Stage>>,
}

impl Display {
    fn new() -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(0);
            let template = "{spinner} {prefix:20} [{bar:30}] {percent:>3}% {wide_msg}";
            let style = ProgressStyle::with_template(template);
            bar.set_style(
                style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> "),
            );
            bar.enable_steady_tick(std::time::Duration::from_millis(120));
            bar
        });
        Self { bar, last_stage: Mutex::new(None) }
    }

    fn clear(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

impl Reporter for Display {
    fn progress(&self, progress: &Progress) {
        let mut last = self.last_stage.lock().expect("no code panics while it holds this lock");
        let is_new = last.replace(progress.stage) != Some(progress.stage);
        match &self.bar {
            Some(bar) => {
                bar.set_prefix(progress.stage.name());
                bar.set_length(progress.total.max(1));
                bar.set_position(progress.done);
                bar.set_message(progress.detail.clone());
            }
            None if is_new => {
                let number = Stage::ALL.iter().position(|stage| *stage == progress.stage);
                let number = number.map_or(0, |index| index + 1);
                eprintln!("image: {number}/{} {}", Stage::ALL.len(), progress.stage);
            }
            None => {}
        }
    }

    fn note(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.println(text),
            None => eprintln!("image: {text}"),
        }
    }
}

fn load_recipe(path: &std::path::Path) -> anyhow::Result<Recipe> {
    let text = std::fs::read_to_string(path);
    let text = text.with_context(|| format!("cannot read the recipe {}", path.display()))?;
    Ok(Recipe::parse(&text, &path.display().to_string())?)
}
