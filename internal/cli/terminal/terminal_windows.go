package terminal

import (
	"os"

	"golang.org/x/sys/windows"
)

func isTerminal(f *os.File) bool {
	h, mode := windows.Handle(f.Fd()), uint32(0)
	if windows.GetConsoleMode(h, &mode) != nil {
		return false
	}
	// For the output it makes the console understand escape sequences; for the input, which has other bits, it fails.
	_ = windows.SetConsoleMode(h, mode|windows.ENABLE_VIRTUAL_TERMINAL_PROCESSING)
	return true
}

func size(f *os.File) (width, height int, ok bool) {
	var info windows.ConsoleScreenBufferInfo
	if windows.GetConsoleScreenBufferInfo(windows.Handle(f.Fd()), &info) != nil {
		return 0, 0, false
	}
	return int(info.Window.Right-info.Window.Left) + 1, int(info.Window.Bottom-info.Window.Top) + 1, true
}

// SingleKeys makes the terminal pass on each key at once and show none. Control-C still sends an interrupt. Restore undoes it.
func SingleKeys(f *os.File) (restore func(), err error) {
	h, before := windows.Handle(f.Fd()), uint32(0)
	if err := windows.GetConsoleMode(h, &before); err != nil {
		return nil, err
	}
	if err := windows.SetConsoleMode(h, before&^(windows.ENABLE_LINE_INPUT|windows.ENABLE_ECHO_INPUT)); err != nil {
		return nil, err
	}
	return func() { _ = windows.SetConsoleMode(h, before) }, nil
}

// Resized returns a channel that never receives a value: Windows sends no signal. A program redraws now and then anyway.
func Resized() (c chan os.Signal, stop func()) { return nil, func() {} }
