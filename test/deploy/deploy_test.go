// Package deploy checks what stands in deploy/, each piece by the tool or the types of
// what it is for.
package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// directory is where the pieces are.
const directory = "../../deploy"

// read gives a file of deploy/.
func read(t *testing.T, path ...string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(append([]string{directory}, path...)...))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// tool runs a program that test/prepare.sh has provided, within a directory of deploy/.
func tool(t *testing.T, within, name string, args ...string) {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		if name, err = filepath.Abs(filepath.Join("../../bin/tools", name)); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = filepath.Join(directory, within)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%s %v: %v (test/prepare.sh tests installs what is missing)\n%s", name, args, err, out)
	}
}
