//! TPC-W's made-up words: random strings, digit syllables, and the fixed lists.
//!
//! # Invariants
//! Only ASCII letters, digits and blanks come out, so nothing needs quoting in COPY or in LIKE.

use rand::Rng;
use rand::rngs::SmallRng;

const SYLLABLES: [&str; 10] = ["BA", "OG", "AL", "RI", "RE", "SE", "AT", "UL", "IN", "NG"];
const LETTERS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz ABCDE";

/// TPC-W's subjects.
pub const SUBJECTS: [&str; 24] = [
    "ARTS",
    "BIOGRAPHIES",
    "BUSINESS",
    "CHILDREN",
    "COMPUTERS",
    "COOKING",
    "HEALTH",
    "HISTORY",
    "HOME",
    "HUMOR",
    "LITERATURE",
    "MYSTERY",
    "NON-FICTION",
    "PARENTING",
    "POLITICS",
    "REFERENCE",
    "RELIGION",
    "ROMANCE",
    "SELF-HELP",
    "SCIENCE-NATURE",
    "SCIENCE-FICTION",
    "SPORTS",
    "YOUTH",
    "TRAVEL",
];
/// Bindings.
pub const BACKINGS: [&str; 5] = ["HARDBACK", "PAPERBACK", "USED", "AUDIO", "LIMITED-EDITION"];
/// Ways to ship.
pub const SHIP_TYPES: [&str; 6] = ["AIR", "UPS", "FEDEX", "SHIP", "COURIER", "MAIL"];
/// States of an order.
pub const STATUSES: [&str; 4] = ["PROCESSING", "SHIPPED", "PENDING", "DENIED"];
/// Credit cards.
pub const CARDS: [&str; 5] = ["VISA", "MASTERCARD", "DISCOVER", "AMEX", "DINERS"];
/// Currencies of the countries, in turn.
pub const CURRENCIES: [&str; 6] = ["Dollars", "Pounds", "Euros", "Yen", "Francs", "Kroner"];

/// TPC-W's 92 countries.
pub const COUNTRIES: [&str; 92] = [
    "United States",
    "United Kingdom",
    "Canada",
    "Germany",
    "France",
    "Japan",
    "Netherlands",
    "Italy",
    "Switzerland",
    "Australia",
    "Algeria",
    "Argentina",
    "Armenia",
    "Austria",
    "Azerbaijan",
    "Bahamas",
    "Bahrain",
    "Bangla Desh",
    "Barbados",
    "Belarus",
    "Belgium",
    "Bermuda",
    "Bolivia",
    "Botswana",
    "Brazil",
    "Bulgaria",
    "Cayman Islands",
    "Chad",
    "Chile",
    "China",
    "Christmas Island",
    "Colombia",
    "Croatia",
    "Cuba",
    "Cyprus",
    "Czech Republic",
    "Denmark",
    "Dominican Republic",
    "Eastern Caribbean",
    "Ecuador",
    "Egypt",
    "El Salvador",
    "Estonia",
    "Ethiopia",
    "Falkland Island",
    "Faroe Island",
    "Fiji",
    "Finland",
    "Gabon",
    "Gibraltar",
    "Greece",
    "Guam",
    "Hong Kong",
    "Hungary",
    "Iceland",
    "India",
    "Indonesia",
    "Iran",
    "Iraq",
    "Ireland",
    "Israel",
    "Jamaica",
    "Jordan",
    "Kazakhstan",
    "Kuwait",
    "Lebanon",
    "Luxembourg",
    "Malaysia",
    "Mexico",
    "Mauritius",
    "New Zealand",
    "Norway",
    "Pakistan",
    "Philippines",
    "Poland",
    "Portugal",
    "Romania",
    "Russia",
    "Saudi Arabia",
    "Singapore",
    "Slovakia",
    "South Africa",
    "South Korea",
    "Spain",
    "Sudan",
    "Sweden",
    "Taiwan",
    "Thailand",
    "Trinidad",
    "Turkey",
    "Venezuela",
    "Zambia",
];

/// TPC-W's DigSyl: each digit of `number` as a syllable, with zeroes in front up to `digits`.
pub fn syllables(number: u64, digits: usize) -> String {
    format!("{number:0digits$}")
        .bytes()
        .map(|digit| SYLLABLES[usize::from(digit.saturating_sub(b'0')) % SYLLABLES.len()])
        .collect()
}

/// Appends random text of `least..=most` characters; it neither begins nor ends with a blank.
pub fn push_text(out: &mut String, rng: &mut SmallRng, least: usize, most: usize) {
    let length = rng.random_range(least..=most);
    let (mut bits, mut left) = (0_u64, 0);
    for at in 0..length {
        if left == 0 {
            (bits, left) = (rng.random(), 12);
        }
        let letter = char::from(LETTERS[(bits & 31) as usize]);
        (bits, left) = (bits >> 5, left - 1);
        let edge = at == 0 || at + 1 == length;
        out.push(if edge && letter == ' ' { 'x' } else { letter });
    }
}

/// Random text of `least..=most` characters.
pub fn text(rng: &mut SmallRng, least: usize, most: usize) -> String {
    let mut out = String::with_capacity(most);
    push_text(&mut out, rng, least, most);
    out
}

/// `length` random digits.
pub fn digits(rng: &mut SmallRng, length: usize) -> String {
    (0..length).map(|_| char::from(b'0' + rng.random_range(0..10_u8))).collect()
}

/// One of a list.
pub fn one<'a>(rng: &mut SmallRng, list: &[&'a str]) -> &'a str {
    list[rng.random_range(0..list.len())]
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng as _;

    use super::*;

    #[test]
    fn syllables_are_tpcw_digits() {
        assert_eq!(syllables(0, 0), "BA");
        assert_eq!(syllables(19, 0), "OGNG");
        assert_eq!(syllables(345, 7), "BABABABARIRESE");
    }

    #[test]
    fn text_has_the_length_asked_for_and_needs_no_quoting() {
        let mut rng = SmallRng::seed_from_u64(7);
        let mut lengths = std::collections::BTreeSet::new();
        for _ in 0..500 {
            let text = text(&mut rng, 2, 5);
            lengths.insert(text.len());
            assert_eq!(text.trim(), text);
            assert!(text.chars().all(|c| c.is_ascii_alphanumeric() || c == ' '), "{text:?}");
        }
        assert_eq!(lengths.into_iter().collect::<Vec<_>>(), [2, 3, 4, 5]);
    }
}
