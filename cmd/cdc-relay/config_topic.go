package main

import (
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cdc-relay/cdc-relay/inbox"
)

// newConfigTopic is `cdc-relay help config`: every key with its default and its
// environment variable, read off the Config type itself.
func newConfigTopic() *cobra.Command {
	var b strings.Builder
	b.WriteString("Configuration is one YAML file (--config, default cdc-relay.yaml). ${NAME} in a value\n" +
		"stands for an environment variable. Every key, its default, and the variable that overrides it:\n\n")
	describeKeys(&b, reflect.ValueOf(defaultConfig()), "", envPrefix)
	fmt.Fprintf(&b, "\nPresets of inbox.partners: %s.\n", strings.Join(inbox.Presets(), ", "))
	return &cobra.Command{Use: "config", Short: "The keys of the configuration file", Long: b.String()}
}

func describeKeys(b *strings.Builder, v reflect.Value, path, prefix string) {
	for i := range v.NumField() {
		field := v.Type().Field(i)
		key := path + field.Tag.Get("yaml")
		value := v.Field(i)
		switch {
		case value.Kind() == reflect.Struct:
			describeKeys(b, value, key+".", prefix+field.Tag.Get("envPrefix"))
		case value.Kind() == reflect.Slice && value.Type().Elem().Kind() == reflect.Struct:
			example := reflect.New(value.Type().Elem())
			if defaults, ok := example.Interface().(interface{ applyDefaults() }); ok {
				defaults.applyDefaults()
			}
			describeKeys(b, example.Elem(), key+"[0].", prefix+field.Tag.Get("envPrefix")+"_0_")
		default:
			fmt.Fprintf(b, "  %-42s %-24s %s\n", key, defaultText(value), prefix+field.Tag.Get("env"))
		}
	}
}

func defaultText(v reflect.Value) string {
	switch value := v.Interface().(type) {
	case time.Duration:
		return value.String()
	case string:
		return fmt.Sprintf("%q", value)
	default:
		return fmt.Sprint(value)
	}
}
