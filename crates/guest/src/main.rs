//! The guest's executable. Outside it builds a cage (`launch`); the process it makes goes on inside.

fn main() {
    bellglass_guest::main();
}
