// What tests of the modules that may use ATen include, compiled once.
#pragma once

#include <gtest/gtest.h>

#include "torch_pch.h"
