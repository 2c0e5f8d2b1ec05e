//! `/login` and `/logout`.
//!
//! # Purpose
//! Lets a role in by its password.
//!
//! # Invariants
//! - The password is proven as the Postgres port proves it, kept nowhere, and never shown again.
//! - After it the visitor goes to a page of this console, wherever `next` points.
//!
//! # On failure
//! A wrong password and a role that does not exist look the same and take as long; too many are
//! told to wait.
//!
//! # Limits
//! See `telesto_server::attempts`.

use axum::Form;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use maud::{DOCTYPE, Markup, html};
use serde::Deserialize;
use telesto_server::Auth;

use crate::access;
use crate::error::Problem;
use crate::routes::Console;
use crate::show;
use crate::visit::{self, EVERYONE, Source};

#[derive(Debug, Default, Deserialize)]
pub struct Next {
    #[serde(default)]
    next: String,
}

#[derive(Deserialize)]
pub struct Login {
    user: String,
    #[serde(default)]
    password: String,
    #[serde(default)]
    next: String,
}

#[derive(Deserialize)]
pub struct Leave {
    csrf: String,
}

/// `GET /login`
pub async fn page(
    State(console): State<Console>,
    headers: HeaderMap,
    Query(next): Query<Next>,
) -> Response {
    form(&console, &headers, &next.next, "", None)
}

/// `POST /login`
pub async fn submit(
    State(console): State<Console>,
    Source(source): Source,
    headers: HeaderMap,
    Form(login): Form<Login>,
) -> Response {
    if let Err(problem) = visit::same_site(&headers) {
        return problem.into_response();
    }
    let Login { user, password, next } = login;
    let proof = match visit::prove(&console, &user, password, source).await {
        Ok(proof) => proof,
        Err(problem) => return form(&console, &headers, &next, &user, Some(&problem)),
    };
    if let Some(old) = console.sessions.of(&headers) {
        // A session never changes its role: it ends, and another begins.
        console.sessions.end(&old);
    }
    let (token, _) = console.sessions.begin(&user, proof);
    let mut response = Redirect::to(local(&next)).into_response();
    give(&mut response, &access::set_cookie(Some(&token), &headers));
    response
}

/// `POST /logout`
pub async fn leave(
    State(console): State<Console>,
    headers: HeaderMap,
    Form(leave): Form<Leave>,
) -> Response {
    match console.sessions.of(&headers) {
        Some(session) if session.is_csrf(&leave.csrf) => console.sessions.end(&session),
        Some(_) => return Problem::forged().into_response(),
        None => {}
    }
    let mut response = Redirect::to("/login").into_response();
    give(&mut response, &access::set_cookie(None, &headers));
    response
}

fn give(response: &mut Response, cookie: &str) {
    if let Ok(cookie) = HeaderValue::from_str(cookie) {
        response.headers_mut().append(header::SET_COOKIE, cookie);
    }
}

/// `next`, if it is a path here.
fn local(next: &str) -> &str {
    let here = next.starts_with('/')
        && !next.starts_with("//")
        && !next.contains('\\')
        // Browsers leave out TAB and line ends: "/\t/host" is "//host" to them.
        && next.bytes().all(|byte| byte.is_ascii_graphic());
    if here { next } else { "/" }
}

fn form(
    console: &Console,
    headers: &HeaderMap,
    next: &str,
    user: &str,
    problem: Option<&Problem>,
) -> Response {
    let asks = matches!(console.inside.config().auth, Auth::Scram(_));
    let markup: Markup = html! {
        (DOCTYPE)
        html lang="en" data-theme=[visit::theme(headers)] {
            (show::head("Log in", &[], None, None))
            body.login {
                main #main {
                    h1 { (show::logo()) " Telesto" }
                    @if let Some(problem) = problem { (show::problem(problem)) }
                    form method="post" action="/login" {
                        input type="hidden" name="next" value=(local(next));
                        label for="user" { "Role" }
                        input #user name="user" required maxlength="63" autocomplete="username" autocapitalize="none"
                            spellcheck="false" autofocus value=(if user.is_empty() && !asks { EVERYONE } else { user });
                        @if asks {
                            label for="password" { "Password" }
                            input #password name="password" type="password" required autocomplete="current-password";
                        } @else {
                            p.note { "This server asks nobody for a password: it serves this machine only." }
                        }
                        button.main type="submit" { "Log in" }
                    }
                    p.note { "The roles and passwords of the Postgres port. Its rights bind here too." }
                    (show::theme_button())
                }
            }
        }
    };
    let mut response = show::html_response(&markup, &show::policy(None));
    if let Some(problem) = problem {
        *response.status_mut() = match problem.status {
            // Not 401: a browser would ask by itself.
            StatusCode::UNAUTHORIZED => StatusCode::FORBIDDEN,
            status => status,
        };
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_in_leads_to_pages_of_this_console_only() {
        assert_eq!(local("/data/public?x=1"), "/data/public?x=1");
        for elsewhere in [
            "",
            "//evil.example",
            "https://evil.example",
            "/\\evil",
            "/a\r\nb",
            "javascript:x",
            "/\t/evil.example",
            "/\0x",
            "/\u{7f}",
            "/ x",
            "/é",
        ] {
            assert_eq!(local(elsewhere), "/", "{elsewhere}");
        }
    }
}
