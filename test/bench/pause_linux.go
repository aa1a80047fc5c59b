package main

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// pause waits as long as it is told to. time.Sleep can be late by more than a
// millisecond in a process that waits for its network.
func pause(d time.Duration) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		panic(err) // out of descriptors: the figures would mean nothing
	}
	timer := os.NewFile(uintptr(fd), "timer")
	defer timer.Close()
	if err := unix.TimerfdSettime(fd, 0, &unix.ItimerSpec{Value: unix.NsecToTimespec(int64(d))}, nil); err != nil {
		panic(err)
	}
	var expirations [8]byte
	if _, err := timer.Read(expirations[:]); err != nil {
		panic(err)
	}
}
