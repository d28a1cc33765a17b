//! Pictures as SVG, drawn in one place.
//!
//! ```text
//!   svg ─────► the few shapes that plots are made of, and their escaping
//!     └─ timeline ─► what happened when: a lane for each thing, spans of states, marks; as text and as a picture
//! ```
//!
//! Nothing here knows what it draws: `carrack bench` plots measures, the simulator and `carrack drill` draw timelines.

mod svg;
mod timeline;

pub use svg::{Anchor, COLOURS, Svg};
pub use timeline::{Timeline, Tone};
