#include "serve/documents.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/csv.h"
#include "base/error.h"
#include "plan/calculus.h"
#include "serve/footprint.h"
#include "serve/page.h"

namespace molen::serve {
namespace {

// 2 kWh led somewhere and half a kWh was undone, at a PUE of 1.5; the 2 kWh have emitted 0.9 kg.
RunData run_at_a_site() {
  RunData run;
  run.path = "runs/a, \"b\"";
  run.energy_totals = Json::parse(R"({"event":"totals","total_j":7.2e6,"undone_j":1.8e6,"kg_co2e":0.9,"seconds":3000,
      "spent_s":3600,"partial":"without dram","energy_j":{"cpu-package0":7.2e6},
      "spent_j":{"cpu-package0":5.4e6,"cpu-package1":3.6e6,"gpu0":7.2e6,"gpu1":7.2e6,"node":9e7}})");
  run.energy_site = Json::parse(R"({"event":"site","name":"Here <i>","pue":{"value":1.5},
      "intensity_g_per_kwh":{"value":400,"source":"a table"},"water_l_per_kwh":{"value":2},"price_eur_per_kwh":{"value":0.2}})");
  run.environment =
      Json::parse(R"({"cpu":"a processor","cores":8,"gpu":"H100 *SXM*","system":"Linux 6","memory_bytes":8589934592})");
  run.events = {
      Json::parse(R"({"event":"start","step":0,"ranks":2,"arch":"small","wall_time_s":1e9,"state_hash":"abc"})")};
  store::StepMetrics m;
  m.step = 1;
  m.wall_time_s = 1e9 + 60;
  m.step_s = 0.5;
  m.loss = 2.0;
  m.flops_formula = "causal";
  m.model_tflops_per_device = 3.0;
  run.metrics.steps = {m};
  run.values = {{"data.train", "[{path = 'web|x'}]"}};
  return run;
}

std::map<std::string, std::string> row_of(const std::string& csv) {
  CsvReader reader(csv, "emissions.csv", 64);
  std::vector<std::string> names, cells, more;
  EXPECT_TRUE(reader.next(names) && reader.next(cells));
  EXPECT_FALSE(reader.next(more));
  EXPECT_EQ(names.size(), cells.size());
  std::map<std::string, std::string> row;
  for (std::size_t i = 0; i < std::min(names.size(), cells.size()); ++i) row[names[i]] = cells[i];
  return row;
}

TEST(Footprint, CountsWhatFailuresUndid) {
  const auto f = footprint_of(run_at_a_site());
  ASSERT_TRUE(f);
  EXPECT_EQ(f->computers_j, 9e6);
  EXPECT_EQ(f->undone_j, 1.8e6);
  EXPECT_EQ(f->seconds, 3600.0);
  EXPECT_DOUBLE_EQ(*f->site_j, 13.5e6);
  const double kg = 0.9 + 0.5 * 1.5 * 0.4;  // the undone half at the site's constant
  EXPECT_DOUBLE_EQ(*f->kg_co2e, kg);
  EXPECT_DOUBLE_EQ(*f->grams_per_kwh, 1e3 * kg / 3.75);
  EXPECT_DOUBLE_EQ(*f->water_l, 2.0 * 2.5) << "for the computers' energy";
  EXPECT_DOUBLE_EQ(*f->eur, 0.2 * 3.75) << "for the site's energy";
  EXPECT_DOUBLE_EQ(*f->car_km, kg / plan::car_emissions().value / 1e3);
}

TEST(Footprint, SaysNothingThatIsNotKnown) {
  RunData run = run_at_a_site();
  run.energy_site = Json();
  const auto unsited = footprint_of(run);
  ASSERT_TRUE(unsited);
  EXPECT_FALSE(unsited->site || unsited->site_j || unsited->kg_co2e || unsited->water_l || unsited->eur ||
               unsited->car_km);
  EXPECT_NE(footprint_table(run).find("No site is named"), std::string::npos);
  EXPECT_THROW(emissions_csv(run), UsageError);
  run = run_at_a_site();
  run.energy_totals["kg_co2e"] = nullptr;  // an earlier attempt named no site
  EXPECT_FALSE(footprint_of(run)->kg_co2e);
  EXPECT_TRUE(footprint_of(run)->water_l);
  EXPECT_THROW(emissions_csv(run), UsageError);
  run.energy_totals = Json();
  EXPECT_FALSE(footprint_of(run));
  EXPECT_EQ(footprint_table(run), "");
  EXPECT_THROW(emissions_csv(run), UsageError);
  for (const char* damage : {"7", "[]", R"({"pue":7})", R"({"name":[],"pue":{"value":"x"}})"}) {
    run = run_at_a_site();
    run.energy_site = Json::parse(damage);
    EXPECT_NO_THROW(footprint_table(run)) << damage;
    EXPECT_NO_THROW(model_card(run)) << damage;
  }
}

TEST(Footprint, TheTableIsEscaped) {
  const std::string html = footprint_table(run_at_a_site());
  EXPECT_NE(html.find("At the site Here &lt;i&gt;"), std::string::npos) << html;
  EXPECT_NE(html.find("<th scope=row>energy with the site<td>3.75 kWh"), std::string::npos) << html;
  EXPECT_NE(html.find("<th scope=row>emissions<td>1.2 kg CO2e<td class=text>320 g CO2e/kWh; a table"),
            std::string::npos)
      << html;
}

TEST(Emissions, ARowOfCodeCarbon) {
  const auto row = row_of(emissions_csv(run_at_a_site()));
  EXPECT_EQ(row.size(), 34u);
  const std::map<std::string, std::string> want{{"project_name", "a, \"b\""},
                                                {"duration", "3600"},
                                                {"emissions", "1.2"},
                                                {"cpu_energy", "3.75"},  // 9 MJ with the PUE
                                                {"gpu_energy", "6"},
                                                {"ram_energy", ""},
                                                {"cpu_power", "2500"},
                                                {"gpu_power", "4000"},
                                                {"energy_consumed", "3.75"},
                                                {"water_consumed", "5"},
                                                {"country_name", "Here <i>"},
                                                {"cpu_count", "8"},
                                                {"gpu_count", "2"},
                                                {"ram_total_size", "8"},
                                                {"tracking_mode", "machine"},
                                                {"pue", "1.5"},
                                                {"timestamp", "2001-09-09T01:47:40Z"}};
  for (const auto& [name, value] : want) EXPECT_EQ(row.at(name), value) << name;
  EXPECT_NEAR(std::stod(row.at("emissions_rate")), 1.2 / 3600, 1e-9);
  EXPECT_NEAR(std::stod(row.at("wue")), 5.0 / 3.75, 1e-8);
}

TEST(ModelCard, HasWhatTheRunKnows) {
  const std::string card = model_card(run_at_a_site());
  EXPECT_TRUE(card.starts_with("---\nlibrary_name: molen\n")) << card;
  for (const char* text :
       {"  emissions: 1200\n", "  geographical_location: \"Here <i>\"\n", "  hardware_used: \"2 x H100 *SXM*\"\n",
        "- hardware: 2 x H100 \\*SXM\\*\n", "- data.train: \\[\\{path = 'web\\|x'\\}\\]\n",
        "- floating-point operations of the model: 3e+12 (causal)\n",
        "- energy of the computers: 2.5 kWh, measured in part (without dram)\n",
        "- of it in steps that failures undid: 0.5 kWh\n", "- water: 5 l\n"})
    EXPECT_NE(card.find(text), std::string::npos) << text << "\n" << card;
  RunData run = run_at_a_site();
  run.energy_totals = Json();
  const std::string unmeasured = model_card(run);
  EXPECT_EQ(unmeasured.find("co2_eq_emissions"), std::string::npos);
  EXPECT_NE(unmeasured.find("- energy: not measured\n"), std::string::npos);
}

}  // namespace
}  // namespace molen::serve
