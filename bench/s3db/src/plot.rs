//! Plots as SVG.
//!
//! # Invariants
//! One colour a series, in the order given. The legend is in the upper corner that the highest
//! point is not near.
//!
//! # On failure
//! The drawing library's error, as text.
//!
//! # Limits
//! Lines with a dot at each point; a series of one point is a dot. Axes begin at zero.

use std::path::Path;

use plotters::prelude::*;

/// One line of a plot.
pub struct Series {
    pub name: String,
    pub points: Vec<(f64, f64)>,
}

/// Draws lines over common axes.
pub fn lines(file: &Path, title: &str, x: &str, y: &str, series: &[Series]) -> Result<(), String> {
    draw(file, title, x, y, series).map_err(|error| format!("{}: {error}", file.display()))
}

fn draw(
    file: &Path,
    title: &str,
    x: &str,
    y: &str,
    series: &[Series],
) -> Result<(), Box<dyn std::error::Error>> {
    let root = SVGBackend::new(file, (760, 440)).into_drawing_area();
    root.fill(&WHITE)?;
    let points = || series.iter().flat_map(|series| &series.points);
    let max = |of: fn(&(f64, f64)) -> f64| points().map(of).fold(1e-12, f64::max) * 1.08;
    let highest = points().fold((0.0, 0.0), |most, at| if at.1 > most.1 { *at } else { most });
    let legend = match highest.0 > max(|p| p.0) / 2.0 {
        true => SeriesLabelPosition::UpperLeft,
        false => SeriesLabelPosition::UpperRight,
    };
    let mut chart = ChartBuilder::on(&root)
        .caption(title, ("sans-serif", 16))
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(60)
        .build_cartesian_2d(0.0..max(|p| p.0), 0.0..max(|p| p.1))?;
    chart.configure_mesh().x_desc(x).y_desc(y).light_line_style(WHITE).draw()?;
    for (at, series) in series.iter().enumerate() {
        let colour = Palette99::pick(at).to_rgba();
        let line = LineSeries::new(series.points.iter().copied(), colour.stroke_width(2));
        let dots = series.points.iter().map(|at| Circle::new(*at, 3, colour.filled()));
        chart.draw_series(dots)?;
        chart
            .draw_series(line)?
            .label(series.name.clone())
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(legend)
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.3))
        .draw()?;
    root.present()?;
    Ok(())
}
