// Package browsertest tests the pages of package inspector in a browser. It is a module of its own, so that what drives the
// browser is no dependency of the library.
//
// The tests use Chromium, which they find on PATH or by the environment variable BROWSER. Without it they are skipped, or
// fail if LOCKKEEPER_NEED_BROWSER is set. On Debian: apt-get install chromium-headless-shell.
package browsertest
