package main

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"

	"github.com/caarlos0/env/v11"
	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"

	"github.com/cdc-relay/cdc-relay/internal/mend"
)

const envPrefix = "CDC_RELAY_"

// source is where a Config came from, to point at in messages.
type source struct {
	path string
	file *ast.File // nil when there is no file
}

// loadConfig reads, completes and checks the configuration. A file that isn't
// there is no error when the path is the default one and the environment says
// enough. Every error names what is to be changed, and none shows a secret.
func loadConfig(path string, optional bool) (Config, error) {
	cfg := defaultConfig()
	src := source{path: path}
	text, err := os.ReadFile(path)
	switch {
	case errors.Is(err, os.ErrNotExist) && optional:
	case err != nil:
		return cfg, mend.With(fmt.Errorf("read config: %w", err), "name the file with --config, or set CDC_RELAY_DATABASE_URL and the other settings in the environment")
	default:
		if src.file, err = parseYAML(path, text, &cfg); err != nil {
			return cfg, err
		}
	}
	if err := env.ParseWithOptions(&cfg, env.Options{Prefix: envPrefix}); err != nil {
		return cfg, mend.With(fmt.Errorf("environment: %w", err), "correct the variable")
	}
	if err := cfg.complete(src); err != nil {
		return cfg, err
	}
	return cfg, cfg.check(src)
}

// complete fills in defaults of what is in lists, and reads the files of secrets.
func (c *Config) complete(src source) error {
	files := []secretsFile{{"inbox.processing.handler", c.Inbox.Processing.Handler.SecretsFile, &c.Inbox.Processing.Handler.Secrets}}
	for i := range c.Destinations {
		d := &c.Destinations[i]
		d.applyDefaults()
		files = append(files, secretsFile{fmt.Sprintf("destinations[%d]", i), d.SecretsFile, &d.Secrets})
	}
	for i := range c.Inbox.Partners {
		p := &c.Inbox.Partners[i]
		p.applyDefaults()
		files = append(files, secretsFile{fmt.Sprintf("inbox.partners[%d]", i), p.SecretsFile, &p.Secrets})
	}
	for _, f := range files {
		if err := f.read(); err != nil {
			return src.at(f.key+".secrets_file", err.Error())
		}
	}
	if err := readToken(c.Admin.TokenFile, &c.Admin.Token); err != nil {
		return src.at("admin.token_file", err.Error())
	}
	if err := readToken(c.Admin.ReadTokenFile, &c.Admin.ReadToken); err != nil {
		return src.at("admin.read_token_file", err.Error())
	}
	return nil
}

// readToken takes a token from the file that holds it alone.
func readToken(path string, token *string) error {
	if path == "" {
		return nil
	}
	if *token != "" {
		return errors.New("is set beside the token itself")
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if *token = strings.TrimSpace(string(text)); *token == "" {
		return errors.New("the file is empty")
	}
	return nil
}

func parseYAML(path string, text []byte, cfg *Config) (*ast.File, error) {
	file, err := parser.ParseBytes(text, 0)
	if err != nil {
		return nil, yamlError(path, err)
	}
	if len(file.Docs) == 0 || file.Docs[0].Body == nil {
		return file, nil
	}
	if len(file.Docs) > 1 {
		return nil, mend.With(fmt.Errorf("%s holds %d documents", path, len(file.Docs)), "keep one")
	}
	expander := &expander{}
	ast.Walk(expander, file.Docs[0].Body)
	if expander.err != nil {
		return nil, fmt.Errorf("%s:%w", path, expander.err)
	}
	if err := yaml.NodeToValue(file.Docs[0].Body, cfg, yaml.Strict()); err != nil {
		return nil, yamlError(path, err)
	}
	return file, nil
}

// yamlError writes an error of the YAML library as file:line: message, without
// the excerpt of the source, which could show a secret.
func yamlError(path string, err error) error {
	var y yaml.Error
	if errors.As(err, &y) && y.GetToken() != nil {
		position := y.GetToken().Position
		return mend.With(fmt.Errorf("%s:%d:%d: %s", path, position.Line, position.Column, y.GetMessage()),
			"correct this line; `cdc-relay help config` lists the keys")
	}
	return mend.With(fmt.Errorf("%s: %s", path, yaml.FormatError(err, false, false)), "correct the file")
}

// expander replaces ${NAME} in the scalar values of a document by the
// environment's variables. It works on the parsed tree, so that a value can't
// become YAML syntax.
type expander struct{ err error }

var reference = regexp.MustCompile(`\$\{([A-Za-z_][A-Za-z0-9_]*)\}`)

// Visit implements ast.Visitor.
func (e *expander) Visit(node ast.Node) ast.Visitor {
	if pair, ok := node.(*ast.MappingValueNode); ok {
		ast.Walk(e, pair.Value) // not the key
		return nil
	}
	if text, ok := node.(*ast.StringNode); ok && e.err == nil {
		text.Value = reference.ReplaceAllStringFunc(text.Value, func(ref string) string {
			name := ref[2 : len(ref)-1]
			value, set := os.LookupEnv(name)
			if !set && e.err == nil {
				position := text.GetToken().Position
				e.err = mend.With(fmt.Errorf("%d:%d: environment variable %s is not set", position.Line, position.Column, name),
					"set "+name+", or write the value here")
			}
			return value
		})
	}
	return e
}

// secretsFile is a file of secrets, one a line, that stands beside a list of them.
type secretsFile struct {
	key     string // of what has the secrets
	path    string
	secrets *[]string
}

func (f secretsFile) read() error {
	if f.path == "" {
		return nil
	}
	text, err := os.ReadFile(f.path)
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(text)) {
		if secret := strings.TrimSpace(line); secret != "" {
			*f.secrets = append(*f.secrets, secret)
		}
	}
	return nil
}

// at makes the error about one key, with its line where a file gave it.
func (s source) at(key, problem string) error {
	where := envPrefix + strings.ToUpper(strings.NewReplacer(".", "_", "[", "_", "]", "").Replace(key))
	if line := s.line(key); line != "" {
		where = s.path + ":" + line
	}
	return mend.With(fmt.Errorf("%s: %s: %s", where, key, problem), "correct "+key)
}

// line is line:column of a key, or of the nearest key above it that is there.
func (s source) line(key string) string {
	if s.file == nil {
		return ""
	}
	for key != "" {
		if path, err := yaml.PathString("$." + key); err == nil {
			if node, err := path.FilterFile(s.file); err == nil && node != nil {
				position := node.GetToken().Position
				return fmt.Sprintf("%d:%d", position.Line, position.Column)
			}
		}
		key = key[:max(0, strings.LastIndexAny(key, ".["))]
	}
	return "1:1"
}
