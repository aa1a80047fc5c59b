package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
)

// browser is a page in a real Chromium.
type browser struct {
	t   *testing.T
	ctx context.Context
	url string // of the admin listener
}

// openBrowser starts a Chromium of the test's own.
func openBrowser(t *testing.T, url string) *browser {
	t.Helper()
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.NoSandbox, chromedp.DisableGPU, chromedp.WindowSize(1280, 900),
		chromedp.Flag("disable-component-update", true), chromedp.Flag("disable-sync", true), chromedp.UserDataDir(t.TempDir()),
	)
	if path := os.Getenv("CDC_RELAY_TEST_CHROMIUM"); path != "" {
		options = append(options, chromedp.ExecPath(path))
	}
	allocator, endAllocator := chromedp.NewExecAllocator(t.Context(), options...)
	ctx, end := chromedp.NewContext(allocator)
	t.Cleanup(func() {
		end()
		endAllocator()
	})
	b := &browser{t: t, ctx: ctx, url: url}
	if err := chromedp.Do(ctx); err != nil {
		t.Fatalf("start Chromium (Debian's package chromium, or name one by CDC_RELAY_TEST_CHROMIUM): %v", err)
	}
	return b
}

// do takes steps in the page.
func (b *browser) do(steps ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	take(b, chromedp.Steps(steps...))
}

// take takes one step in the page and gives what it gives.
func take[T any](b *browser, step chromedp.Action[T]) T {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, 30*time.Second)
	defer cancel()
	got, err := chromedp.Run(ctx, step)
	if err != nil {
		b.t.Fatal(err)
	}
	return got
}

// leave takes a step that leads to another page, and waits for it.
func (b *browser) leave(step chromedp.Action[chromedp.Void], what string) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, 30*time.Second)
	defer cancel()
	if _, err := chromedp.RunResponse(ctx, step); err != nil {
		b.t.Fatalf("%s: %v; the page says:\n%s", what, err, b.text())
	}
	b.do(chromedp.WaitReady("main"))
}

func (b *browser) open(path string) {
	b.t.Helper()
	b.do(chromedp.Navigate(b.url+path), chromedp.WaitReady("main"))
}

// press presses the button that bears a text, and waits for the page that follows.
func (b *browser) press(text string) {
	b.t.Helper()
	b.leave(chromedp.Click(fmt.Sprintf(`//main//button[starts-with(normalize-space(.), %q)]`, text)), "press "+text)
}

func (b *browser) follow(text string) {
	b.t.Helper()
	b.leave(chromedp.Click(fmt.Sprintf(`//a[starts-with(normalize-space(.), %q)]`, text)), "follow "+text)
}

func (b *browser) fill(selector, value string) {
	b.t.Helper()
	b.do(chromedp.SetValue(selector, value))
}

func (b *browser) text() string {
	b.t.Helper()
	return take(b, chromedp.Evaluate[string]("document.body.innerText"))
}

// says waits until the page says something.
func (b *browser) says(parts ...string) {
	b.t.Helper()
	for _, part := range parts {
		deadline := time.Now().Add(20 * time.Second)
		for !strings.Contains(b.text(), part) {
			if time.Now().After(deadline) {
				b.t.Fatalf("the page doesn't say %q:\n%s", part, b.text())
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
}

func (b *browser) signIn(name, token string) {
	b.t.Helper()
	b.open("/sign-in")
	b.fill("input[name=name]", name)
	b.fill("input[name=token]", token)
	b.press("Sign in")
}

// evaluate runs a script in the page and gives its value.
func (b *browser) evaluate(script string) string {
	b.t.Helper()
	return fmt.Sprint(take(b, chromedp.Evaluate[any](script)))
}

// picture saves a screenshot of the whole page, where CDC_RELAY_TEST_PICTURES names a
// directory for it: in light and dark, wide and as narrow as a phone.
func (b *browser) picture(name string) {
	b.t.Helper()
	dir := os.Getenv("CDC_RELAY_TEST_PICTURES")
	if dir == "" {
		return
	}
	for _, width := range []int64{1280, 390} {
		for _, scheme := range []string{"light", "dark"} {
			b.do(chromedp.EmulateViewport(width, 900), inColours(scheme))
			png := take(b, chromedp.FullScreenshot(100))
			if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%s-%d-%s.png", name, width, scheme)), png, 0o644); err != nil {
				b.t.Fatal(err)
			}
		}
	}
	b.do(chromedp.EmulateViewport(1280, 900))
}

// inColours makes the page light or dark.
func inColours(scheme string) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
		})
		return err
	})
}
